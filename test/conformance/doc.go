// Package conformance states the rules of custom resources as a user of
// Kubernetes would, and holds a running shard to them, in several logical
// clusters at once.
package conformance
