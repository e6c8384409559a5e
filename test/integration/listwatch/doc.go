// Package listwatch contains integration tests of lists, watches, and the merged view of all shards,
// in clusters that run in the test process.
package listwatch
