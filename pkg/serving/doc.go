// Package serving holds what all Shardplane servers that store objects share:
// the options of the secure listener, the construction of the generic API
// server's configuration, and the filters that tell logical clusters apart.
//
//	TLS ─► WithClusterURL ─► upstream's chain (panic, audit, authn, authz, …) ─► WithClusterRules ─► API
//
// The outer filter takes the logical cluster off the URL, so that everything
// between sees a plain Kubernetes path; the inner one answers, after
// authorization, what no logical cluster may be asked.
//
// Below it, fairness shares a server among logical clusters, metriclabels keeps
// names that tenants choose out of metrics, and ownership compares whose the
// data in an etcd is before a server uses it.
package serving
