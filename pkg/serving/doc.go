// Package serving contains everything that the Shardplane servers which store objects have in common: options of
// the secure listener, the configuration of the generic API server, and filters of their handler chains.
//
//	Chain = Arrival + scope filters + Reception + WithAccessHeader + Decision + limits and rules
//
// Each server assembles its chain from these parts; docs/chains.md lists them. Scopes moves the scope from the URL
// into the context, so that all other filters see a plain Kubernetes path.
//
// Subpackages: ledger limits concurrent requests and other resources of logical clusters and users; connections,
// bodies and responses account for them. fairness schedules requests between logical clusters, and watchdog handles
// requests that compute after their end. features contains the feature gates, metriclabels limits the cardinality of
// metrics, inprocess connects a server to itself, and chaintest compares chains with their documentation.
package serving
