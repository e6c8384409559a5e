package dev

import (
	"fmt"
	"path/filepath"
)

const (
	sharedDir   = ".kcp"
	cacheDir    = ".kcp-cache"
	readyFile   = "ready-to-test"
	versionFile = "version"
	lockFile    = "dev.lock"
)

// layout contains the paths of the files in a working directory.
//
//	.kcp/          authorities, certificates, keys, admin.kubeconfig, front-proxy.log,
//	               version, dev.lock, ready-to-test
//	.kcp-<n>/      admin.kubeconfig, root-shard.kubeconfig, cache.kubeconfig, data/ and
//	               <shard name>.log of shard n
//	.kcp-cache/    cache.kubeconfig, data/ and cache-server.log
type layout string

func (l layout) shared(name string) string { return filepath.Join(string(l), sharedDir, name) }

func (l layout) cache(name string) string { return filepath.Join(string(l), cacheDir, name) }

func (l layout) shard(n int, name string) string {
	return filepath.Join(string(l), fmt.Sprintf("%s-%d", sharedDir, n), name)
}

// dirs returns the directories of a cluster.
func (l layout) dirs(shards int) []string {
	dirs := []string{l.shared(""), l.cache("")}
	for n := range shards {
		dirs = append(dirs, l.shard(n, ""))
	}
	return dirs
}
