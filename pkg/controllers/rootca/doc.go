// Package rootca puts the CA of the address that users know into every namespace of
// every logical cluster of a shard, as the ConfigMap kube-root-ca.crt, so that clients
// inside find what to verify the servers with where Kubernetes has it.
//
// Events of namespaces and of these ConfigMaps are worked off at once. What is there
// when the controller starts, or when the CA has changed, is looked through instead,
// and written at a bounded rate: that may be every namespace of the shard.
package rootca
