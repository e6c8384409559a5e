// Package shardsim is many shards in one process, for what follows shards and forwards to them:
// they have workspaces that cost nothing to keep, by number, and answer requests with nothing.
package shardsim
