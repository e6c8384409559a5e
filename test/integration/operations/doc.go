// Package operations contains integration tests of audit, encryption, etcd, placement, and servers that fail,
// in clusters that run in the test process.
package operations
