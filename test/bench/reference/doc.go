// Package reference is the plain API server with which Shardplane is compared. It uses the same
// library and stores the same built-in resources with upstream's storage and watch cache in an
// embedded etcd, for one cluster.
//
//	TLS ─► upstream's handler chain ─► pkg/registry's tables ─► upstream's StorageWithCacher ─► etcd
//
// It authenticates client certificates and authorizes system:masters. It has no admission, no
// controllers and no custom resources. Therefore it is faster than a complete kube-apiserver.
package reference
