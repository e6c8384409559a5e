package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/registry/longlist"
	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/watchevents"
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
		info := groupInfo(group, storages[i])
		if group.GroupVersion.Group != "" {
			named = append(named, info)
			continue
		}
		if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, info); err != nil {
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

func groupInfo(group resource.Group, storages map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(group.GroupVersion.Group, Scheme, ParameterCodec, Codecs)
	info.NegotiatedSerializer = longlist.Serializer(watchevents.Serializer(info.NegotiatedSerializer))
	info.VersionedResourcesStorageMap[group.GroupVersion.Version] = storages
	return &info
}
