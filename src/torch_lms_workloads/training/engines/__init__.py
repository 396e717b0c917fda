"""How ranks train one network together, one way a file."""
