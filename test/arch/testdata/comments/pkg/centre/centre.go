//go:build linux

// This one is apart from the package clause.

package centre
