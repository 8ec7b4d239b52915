"""Pages to play with: each is one HTML file that needs no network, with numbers from the library's own functions."""
