// Package snapshot saves what an embedded etcd holds into a file, and restores
// it from there, for people at a terminal:
//
//	running server ── GET Path ──┐
//	stopped data directory ──────┴─► Save ─► file ─► Restore ─► new data directory
//
// A file has etcd's own format, the database and its SHA-256, so that etcd's own
// tools read it too. It is there as a whole or not at all: Save writes beside it
// and renames, and Restore does the same with the directory.
package snapshot

// Path is where servers with an embedded etcd serve snapshots of it.
const Path = "/etcd/snapshot"
