// Package authz decides what a user may do in a logical cluster. Each rule is
// an authorizer.Authorizer of its own, most of them decorators; New assembles
// them in one visible place. Until RBAC comes, only privileged groups may do
// anything.
//
//	probes ─ or ─ wildcard gate ─ logical cluster exists ─ privileged groups
package authz
