// Package shard is the server of a shard: an API server with its own etcd, which serves built-in resources,
// custom resources and the APIs of kcp in each logical cluster, serves LIST and WATCH across all of them, and
// runs the controllers of workspaces.
//
//	Options ─ Complete ─► CompletedOptions ─ New (steps.go) ─► Server ─ Run(ctx)
//
// Parts are started in this order: etcd, storage, informers, API server, controllers (parts.go). They are stopped in
// reverse order, because a part must not write to one that has stopped.
package shard
