// Package dev runs a whole Shardplane on one machine for development: shards,
// front-proxy and cache server, each a child process of the same program, in
// one working directory that holds their certificates, kubeconfigs, data and
// logs.
//
//	Options → Complete → Validate → New → Run
//
// Run works in two parts. The preparation (prepare.go) takes the lock of the
// working directory, probes the ports and makes or checks every file; it
// starts nothing, so that whatever is wrong ends in one clear line with
// nothing half-started. The supervision (package supervise) then starts the
// processes together, restarts what dies and stops them in the order
//
//	front-proxy → other shards → root → cache server
//
// so that a component is stopped before those it depends on.
//
// The package knows the components by their flags and URLs only. It imports
// none of them.
//
//	pki        certificate authorities and certificates, in files
//	supervise  starts, restarts and stops child processes
//	exitcode   whether a process that exits is worth another start
package dev
