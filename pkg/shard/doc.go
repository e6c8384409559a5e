// Package shard is the server that holds logical clusters: an apiserver with
// its own etcd that serves the built-in resources, custom resources and the
// project's own kinds in each of them, and LIST and WATCH across all of them,
// and runs the controllers that bring workspaces to life.
//
//	Options ─ Complete ─► CompletedOptions ─ Validate ─ New ─► Server ─ Run(ctx)
//
// Start: etcd, storage, informers, API server, controllers (parts.go). Stop: the same in
// reverse, so that nothing writes to what has stopped.
package shard
