// Package snapshot saves the data of an embedded etcd to a file, and restores it, for the command line:
//
//	running server ── GET Path ──┐
//	stopped data directory ──────┴─► Save ─► file ─► Restore ─► new data directory
//
// Files have etcd's own format, the database and its SHA-256, so that etcd's tools can read them. Save writes to a
// temporary file and renames it, and Restore does the same with the directory.
package snapshot

// Path is the path of snapshots on servers with an embedded etcd.
const Path = "/etcd/snapshot"
