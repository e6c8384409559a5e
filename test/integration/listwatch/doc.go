// Package listwatch contains integration tests of lists, watches, and requests for all shards, in clusters that run in the test process.
package listwatch
