// Package operations contains integration tests of audit, encryption, etcd, placement, and failing servers, in clusters that run in the
// test process.
package operations
