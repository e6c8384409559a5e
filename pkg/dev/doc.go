// Package dev runs a complete Shardplane on one machine for development: shards, front-proxy and cache server,
// each a child process of the same program. A working directory contains certificates, kubeconfigs, data and logs.
//
//	Options → Complete → Validate → RunCluster
//
// RunCluster first locks the working directory, probes the ports, and creates or checks all files (prepare.go). It
// starts no process meanwhile, so that each problem results in one error and no partial start. Then package
// supervise starts the processes concurrently, restarts those that exit, and stops them in the order
//
//	front-proxy → other shards → root → cache server
//
// so that a component stops before its dependencies.
//
// The package does not import the components. It uses only their flags and URLs.
//
//	pki        certificate authorities and certificates, in files
//	supervise  starts, restarts and stops child processes
package dev
