// Package registry serves the built-in Kubernetes resources: it owns their
// scheme and codecs and installs them into a generic API server.
//
// No package of k8s.io/kubernetes is used. The Go types of k8s.io/api are
// registered as the wire version and as the internal version at once, so that
// no conversion functions are needed and an object has one shape in memory, in
// storage and on the wire; only events, which two API groups show in different
// shapes, are converted.
//
//	registry              scheme, codecs, Install
//	├── core              namespaces, configmaps, secrets, serviceaccounts and their tokens
//	├── events            core/v1 and events.k8s.io/v1 events, one storage
//	├── coordination      leases
//	├── rbac              roles and bindings, and who may write them
//	├── admissionregistration  webhook configurations, admission policies and their bindings
//	├── authentication    the reviews of tokens and of oneself
//	├── certificates      certificate signing requests
//	├── authorization     the reviews of who may do what
//	├── resource          what a resource is: a table of names, behaviour, columns
//	├── validate          the checks that kube-apiserver makes on metadata
//	├── longlist          encodes long lists on several cores
//	├── watchevents       encodes events of watches around objects that are encoded
//	└── generated/openapi OpenAPI definitions
//
// To serve one more resource, describe it as a resource.Resource in a file of
// its group's package and add it to that package's Group; a new group is added
// to groups in this package, and its k8s.io/api package to the generator's
// command in generated/openapi.
package registry
