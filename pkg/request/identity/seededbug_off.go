//go:build !seededbug

package identity

// A build with the tag seededbug takes service accounts for their namesakes on
// purpose, so that test/isolation can show that it would notice. Here nothing
// happens.

func forgetsHome() bool { return false }
