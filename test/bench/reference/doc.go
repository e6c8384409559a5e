// Package reference is what Shardplane is compared with: a plain API server of
// the same library, which stores the same built-in resources with upstream's
// storage and watch cache in an embedded etcd, for one cluster.
//
//	TLS ─► upstream's handler chain ─► pkg/registry's tables ─► upstream's StorageWithCacher ─► etcd
//
// It authenticates client certificates, lets system:masters do everything, has
// no admission and no custom resources. That makes it faster than a whole
// kube-apiserver, and so a strict measure.
//
// Beside it is the standard library's reverse proxy, for the front-proxy.
package reference
