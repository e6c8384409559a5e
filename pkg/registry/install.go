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
//	├── encoders          encodes long lists and watch events faster than upstream
//	└── generated/openapi OpenAPI definitions
//
// To add a resource, describe it as a resource.Resource in a file of its group's package and add it to that package's
// Group. A new group must be added to groups in this package, and its k8s.io/api package to the generator's command in
// generated/openapi.
package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/registry/encoders"
	"github.com/shardplane/shardplane/pkg/registry/resource"
)

// Install serves the built-in resources from the server, which must have an OpenAPI configuration with a namer of
// WireScheme. options configures the storage and must use StorageCodec. The server destroys the storages when it shuts
// down.
func Install(server *genericapiserver.GenericAPIServer, options generic.RESTOptionsGetter, access Access) (err error) {
	groups := groups(access)
	builder := &resource.Builder{Scheme: Scheme, RESTOptions: options}
	storages, err := builder.Build(groups)
	if err != nil {
		return fmt.Errorf("building the built-in resources: %w", err)
	}
	defer func() {
		if err != nil {
			builder.Destroy()
		}
	}()
	named := make([]*genericapiserver.APIGroupInfo, 0, len(groups))
	for i, group := range groups {
		info := genericapiserver.NewDefaultAPIGroupInfo(group.GroupVersion.Group, Scheme, ParameterCodec, Codecs)
		info.NegotiatedSerializer = encoders.Serializer(info.NegotiatedSerializer)
		info.VersionedResourcesStorageMap[group.GroupVersion.Version] = storages[i]
		if group.GroupVersion.Group != "" {
			named = append(named, &info)
			continue
		}
		if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
			return fmt.Errorf("installing the core group: %w", err)
		}
	}
	if err := server.InstallAPIGroups(named...); err != nil {
		return fmt.Errorf("installing the built-in API groups: %w", err)
	}
	return nil
}

// Resources returns the built-in resources that Install serves.
func Resources() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, group := range groups(Access{}) {
		for _, definition := range group.Resources {
			all = append(all, group.GroupVersion.WithResource(definition.Plural()))
		}
	}
	return all
}
