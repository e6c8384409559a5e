// Package authz authorizes requests in logical clusters. Each rule is an authorizer.Authorizer, and most are
// decorators, which New assembles.
//
//	wildcard gate ─ impersonation guard ─┬ paths open to all users
//	                                     ├ groups that may do everything
//	                                     ├ RBAC: required groups ─ workspace content
//	                                     │       ─ status of system APIs
//	                                     │       ─ maximal permission policy ─ rules
//	                                     └ webhook
//
// Package rbac evaluates roles and bindings, and package policy contains the built-in ones. Package
// request/identity determines the identity of a user in a logical cluster.
package authz
