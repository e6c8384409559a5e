// Package rbac describes the resources of rbac.authorization.k8s.io: roles, cluster roles and the bindings of both.
//
// As in Kubernetes, it prevents privilege escalation: a role may only contain rules that its writer has, unless the writer
// has the verb escalate on it. A role may only be bound by users who have all of its rules or the verb bind on it.
// Members of system:masters are exempt. Config provides the rules of users.
package rbac
