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
// Package rbac knows the rules, and policy holds those that every shard comes
// with. Who a user is in a logical cluster is said by pkg/request/identity.
package authz
