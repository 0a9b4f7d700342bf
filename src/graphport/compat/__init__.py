"""What depends on the versions of other packages: private names, operators and schemas of torch."""
