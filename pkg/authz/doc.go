// Package authz decides what a user may do in a logical cluster. Each rule is
// an authorizer.Authorizer of its own, most of them decorators; New assembles
// them in one visible place.
//
//	wildcard gate ─ impersonation guard ─┬ paths open to everybody
//	                                     ├ groups that may do everything
//	                                     ├ RBAC: required groups ─ workspace content
//	                                     │       ─ status of the system's kinds
//	                                     │       ─ maximal permission policy ─ rules
//	                                     └ webhook
//
// The subpackages are identity, which says who a user is in a logical cluster,
// rbac, which knows the rules, and policy, the rules that every shard comes
// with.
package authz
