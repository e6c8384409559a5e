// Package rootca writes the CA for the external address into every namespace of every logical cluster of a shard, as the ConfigMap
// kube-root-ca.crt, where Kubernetes clients expect it.
//
// Changes of namespaces and of these ConfigMaps are processed immediately. When the controller starts or the CA changes,
// all namespaces of the shard are checked at a limited rate.
package rootca
