// Package conformance tests the behavior of custom resources that users of Kubernetes rely on, in several
// logical clusters of a shard at once.
package conformance
