// Package integration holds tests of whole clusters, started in the test
// process: what the servers promise together.
package integration
