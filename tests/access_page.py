"""Generate the page of access from the declarations of the routes.

python -m tests.access_page              writes docs/operate/access.md
"""

from pathlib import Path

from app.deps.scopes import RouteScope
from tests.openapi_checker import openapi_document

PAGE = Path(__file__).resolve().parents[1] / "docs/operate/access.md"
HEAD = """# Access

<!-- Written by `python -m tests.access_page` from the declarations of the routes. Edit the texts there. -->

Every request except the probes needs a key, or a [token](#tokens-of-an-identity-provider). A key has a role, and may be
bound to collections.

| role | may |
|---|---|
| `reader` | search, verify, and read collections, faces, models and jobs |
| `operator` | what a reader may, and enrol, import, label, change and delete faces and people |
| `admin` | what an operator may, and train, measure, publish, delete collections, manage keys, and read the audit log |

    likeness keys create --role reader --collection staff --name "front desk"

makes a key for one collection; `--collection` may be repeated. `POST /v1/keys` does the same over HTTP, for 1,000
collections at most. `likeness keys list` shows the ids of all keys, which `likeness keys rotate` and `likeness keys
revoke` take.

## What a bound key sees

A key that is bound to collections sees and touches nothing of others. For it they do not exist: a collection, a job, a
model or a face of another collection is answered with the same 404, in the same words, as one that was never there,
and lists leave it out. The first start prints an admin's key that is bound to no collection.

| what | belongs to |
|---|---|
| faces, subjects, labels, clusters, deployments, atlases, policies | their collection; a label to both of its faces' |
| job | its collection; the job of a training or evaluation to those that the run reads |
| training, evaluation | every collection that it reads |
| model | the collections that it has learned from, that deploy it, or whose vectors it compares; others to all |
| key | the collections that it is bound to; a key that is bound to none can be seen by such keys alone |
| erasure | its collection, which may be deleted |
| snapshot | the collection that it holds alone; one of the whole service can be seen by unbound keys alone |
| task | the whole installation: everybody may read it, and a key that is bound to no collection may change it |

- What a deleted collection has left (jobs, runs, receipts, entries of the audit log) is not shown to keys that are
  bound to its name once a later collection has it; a key that is bound to no collection sees it.
- A bound admin makes keys for some of its own collections only, and sees, rotates and revokes only those.
- It archives a model only if no other collection has trained or deployed it.
- A model that serves its collection, and has learned from others too, is shown without its plan, labels and report, and
  without the names of the others. Readers see no plan and no report of any model: `GET /v1/trainings/{training}` needs
  an operator.
- It creates only the collections that its key names.
- `/metrics` and `/info` show a bound key only its collections; figures of the whole process and installation, such as
  counts of requests, are for keys that are bound to none.
- What a bound key can tell of others: cursors, ids of labels and clusters and `number` in the audit log rise with the
  rows of all collections; 503 and waiting times show that the service is busy, 503 of `/readyz` that some deployment is
  not ready, and 409 `TooManySnapshots` that `LIKENESS_MAX_SNAPSHOTS` are kept. Where a model that has learned from
  another collection serves its own, an admin who enrols somebody and compares models can tell whether the model has
  learned from that person: measurements count people who were seen elsewhere. Serve a collection whose admins must not
  know by a model of its own.
- Folders below `LIKENESS_IMPORT_ROOTS` can be imported by every operator, bound or not.

## Secrets and revocation

Only the hash of a key is stored. The answer that makes a key is the only place where its secret stands: a repeat with
the same `Idempotency-Key` is answered 409 `SecretNotStored`, with the `key_id`. If the first answer was lost, revoke
that key and make another one.

`DELETE /v1/keys/{key_id}` revokes a key. The process that answers refuses it from then on. The others refuse it after
`LIKENESS_POLL_SECONDS`, at most one second; with Redis, at once. One that alone has lost PostgreSQL may accept it
[for about five seconds](databases.md#postgresql). Open streams of events end within a second. A request whose body is
still arriving is refused, too: its key is looked up again with each part of the body. So is one that waited to write:
its key is looked up again right before the commit, and a key that rotates or revokes itself before it is changed: a
secret that a rotation has ended cannot take the key from its owner. An answer that is being read, such as a photo, is
sent on, for [a minute](http.md#limits) or little more. Jobs that were accepted go on: cancel them.

The last admin's key that is bound to no collection and never expires cannot be revoked (409): make another one first,
over HTTP or on the server with `likeness keys create --role admin`. If there is no such key, for example in a database
of an earlier version, the next `likeness serve` prints a new one.

## Expiry and rotation

A key with `expires_at` (`--days 90`) is refused from that second on, by every process; open streams of events end
within a second. Such a key can only make and rotate keys that expire no later than itself.

    POST /v1/keys/{key_id}:rotate {"overlap_seconds": 3600}

gives a key another secret: id, role, name, collections and expiry stay. The secret that it had is accepted for the
overlap (an hour, if the request does not say; at most 30 days), so that clients can change over one by one, and older
secrets no longer. `overlap_seconds: 0` ends it at once, as after a leak; streams of events that were opened with an
earlier secret end within a second after it is no longer accepted. The new secret is shown once. Whoever rotates
a key of somebody else can act under its id; the [audit log](audit.md) has `key.rotate` before that.

## Tokens of an identity provider

With `LIKENESS_OIDC_ISSUER` and `LIKENESS_OIDC_AUDIENCE`, the access tokens of an OpenID Connect issuer are accepted
beside keys, as `Authorization: Bearer TOKEN` (`pip install 'likeness[oidc]'`). For Keycloak, for example:

    LIKENESS_OIDC_ISSUER=https://sso.example.org/realms/staff
    LIKENESS_OIDC_AUDIENCE=likeness
    LIKENESS_OIDC_ROLES_CLAIM=realm_access.roles
    LIKENESS_OIDC_ROLES='{"face-search": "reader", "face-office": "operator", "face-admin": "admin"}'

- A token must be a JWT that is signed with a public key of the issuer (RS, PS, ES or EdDSA), and state `exp`, `sub`,
  this issuer and this audience. An RSA key must have at least 2,048 bits. Anything else is answered like a wrong key;
  the log has the reason.
- The caller has the highest role that the claim names. A token that names none is answered with 403.
- `LIKENESS_OIDC_COLLECTIONS_CLAIM` names a claim that lists the collections that the token is bound to, or `"*"` for
  all; a token without it is then answered with 403. Without the setting, tokens are bound to no collection.
- The [audit log](audit.md) and labels record the caller as `oidc:` and the token's `sub`, or by `preferred_username`. A
  `sub` of more than 59 characters, or with one that cannot be printed, is recorded as its hash.
- A token is accepted until it expires, and ten seconds longer for clocks that differ: who loses a role at the issuer
  keeps it here until then. An archive or a file of vectors may go on arriving after that. Keys that a person made stay;
  `likeness keys revoke` revokes them.
- The issuer's keys are fetched with the first token, kept for five minutes, and fetched again for a token that names
  another one, at most every half minute. They may take five seconds and a megabyte. While they cannot be fetched, or
  are no keys, tokens whose key is not known are answered with 503, and keys of this service go on.

## Rate limits

| setting | counts | default |
|---|---|---|
| `LIKENESS_MAX_KEY_REQUESTS_PER_MINUTE` | requests of a key | any number |
| `LIKENESS_MAX_ADDRESS_REQUESTS_PER_MINUTE` | all requests of an address, but for the probes | any number |
| `LIKENESS_MAX_WRONG_KEYS_PER_MINUTE` | wrong keys of an address | 60 |

What exceeds a limit is answered with 429 `TooManyRequests` and `Retry-After`. With Redis, all API processes count
together; without it, each counts for itself, so with N processes up to N times as much passes. They also do for five
seconds, each time, while Redis does not answer, or has a counter that is no number or never expires, as a stranger may
have written it: such a counter is removed. An IPv6 client is counted by its /64 network,
and one behind a NAT64 gateway (`64:ff9b::/96`) by its IPv4 address.

After too many wrong keys, further ones from that address are not looked up. Keys that were right within the last ten
minutes, and are not revoked, go on, so clients behind the same address do not notice. Each wrong key is a line
`access.wrong_key` of the log and counted by `likeness_wrong_keys_total`; `likeness_rate_limited_total` counts the
refusals. Behind a proxy, tell the server with `FORWARDED_ALLOW_IPS` which proxy to believe: otherwise all clients have
the address of the proxy. Without it `X-Forwarded-For` is ignored, also from 127.0.0.1; what is no address in it never
counts or is recorded as one.

## Operations

Scope is what the key's collections are compared with, before the request is read. The last column is the action under
which the [audit log](audit.md) records the operation; the others are plain reads.

| scope | meaning for a bound key |
|---|---|
"""
MEANINGS = {
    RouteScope.COLLECTION: "404 unless the key is bound to the collection in the path or the query",
    RouteScope.NEW_COLLECTION: "403 unless the key is bound to the collection in the path",
    RouteScope.JOB: "404 unless the job belongs to its collections",
    RouteScope.TRAINING: "404 unless the training belongs to its collections",
    RouteScope.EVALUATION: "404 unless the evaluation belongs to its collections",
    RouteScope.MODEL: "404 unless the model belongs to its collections or to all",
    RouteScope.SNAPSHOT: "404 unless it is a snapshot of one of its collections alone",
    RouteScope.KEY: "404 unless the key in the path is bound to some of its collections",
    RouteScope.ROWS: "lists show, and bodies can name, only what belongs to its collections",
    RouteScope.INSTALLATION: "403",
    RouteScope.NOTHING: "no check: it shows what belongs to no collection",
}
TABLE_HEAD = """
| operation | role | scope | audited as |
|---|---|---|---|
"""


def page() -> str:
    """The whole page in Markdown."""
    meanings = "".join(f"| {scope} | {MEANINGS[scope]} |\n" for scope in RouteScope)
    rows = (
        f"| `{method.upper()} {path}` | {operation.get('x-role', 'no key')} | {operation['x-scope']} | "
        f"{operation.get('x-audit', '')} |\n"
        for path, item in sorted(openapi_document()["paths"].items())
        for method, operation in item.items()
    )
    return HEAD + meanings + TABLE_HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
