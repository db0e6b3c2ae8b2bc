"""Compare a challenger's answers with the champion's, beside the searches."""
