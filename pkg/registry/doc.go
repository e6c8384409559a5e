// Package registry serves the built-in Kubernetes resources: it contains their scheme and codecs and installs them into
// a generic API server.
//
// It does not use k8s.io/kubernetes. The Go types of k8s.io/api are registered both as the wire version and as the
// internal version, so that no conversion functions are needed and an object has the same form in memory, in storage and
// on the wire. Only events are converted, because two API groups serve them in different forms.
//
//	registry              scheme, codecs, Install
//	├── core              namespaces, configmaps, secrets, serviceaccounts and their tokens
//	├── events            core/v1 and events.k8s.io/v1 events, with one storage
//	├── coordination      leases
//	├── rbac              roles and bindings, and privilege escalation prevention
//	├── admissionregistration  webhook configurations, admission policies and their bindings
//	├── authentication    token reviews and self subject reviews
//	├── certificates      certificate signing requests
//	├── authorization     subject access reviews
//	├── resource          the description of a resource: names, behavior, columns
//	├── validate          kube-apiserver's checks of metadata
//	├── longlist          encodes long lists on several cores
//	├── watchevents       encodes watch events around encoded objects
//	└── generated/openapi OpenAPI definitions
//
// To add a resource, describe it as a resource.Resource in a file of its group's package and add it to that package's
// Group. A new group must be added to groups in this package, and its k8s.io/api package to the generator's command in
// generated/openapi.
package registry
