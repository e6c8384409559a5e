// Package rbac describes the resources of rbac.authorization.k8s.io: roles,
// cluster roles and the bindings of both.
//
// Who writes them must not become more powerful by it. A role may only hold
// rules that its writer has, or the writer has the verb escalate on it; a role
// may only be bound by who has all of its rules, or the verb bind on it.
// Members of system:masters are exempt. Who has which rules is known elsewhere:
// the group is made from that knowledge.
package rbac
