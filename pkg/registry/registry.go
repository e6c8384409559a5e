// Package registry serves the built-in Kubernetes resources: it contains their scheme and codecs and installs them into
// a generic API server.
//
// It does not use k8s.io/kubernetes. The Go types of k8s.io/api are registered both as the wire version and as the
// internal version. Therefore, no conversion functions are needed, and an object has the same form in memory, in
// storage and on the wire. Only events are converted, because two API groups serve them in different forms.
//
//	registry              scheme, codecs, Install
//	├── core              namespaces, configmaps, secrets, serviceaccounts and their tokens
//	├── events            core/v1 and events.k8s.io/v1 events, with one storage
//	├── coordination      leases
//	├── rbac              roles and bindings, and privilege escalation prevention
//	├── admissionregistration  webhook configurations, admission policies and their bindings
//	├── certificates      certificate signing requests
//	├── reviews           token reviews, self subject reviews and access reviews
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
	"reflect"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	"github.com/shardplane/shardplane/pkg/registry/admissionregistration"
	"github.com/shardplane/shardplane/pkg/registry/certificates"
	"github.com/shardplane/shardplane/pkg/registry/coordination"
	"github.com/shardplane/shardplane/pkg/registry/core"
	"github.com/shardplane/shardplane/pkg/registry/encoders"
	"github.com/shardplane/shardplane/pkg/registry/events"
	"github.com/shardplane/shardplane/pkg/registry/rbac"
	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/reviews"
)

var (
	// Scheme contains the types of all built-in resources.
	Scheme = runtime.NewScheme()
	// Codecs encodes and decodes their objects.
	Codecs = serializer.NewCodecFactory(Scheme)
	// ParameterCodec decodes query parameters.
	ParameterCodec = runtime.NewParameterCodec(Scheme)
)

// groups returns the API groups. The core group must be built first, because others serve its resources.
func groups(a Access) []resource.Group {
	return []resource.Group{
		core.Group(a.Tokens, events.Core()),
		events.Group(),
		coordination.Group(),
		admissionregistration.Group(),
		rbac.Group(rbac.Config{Authorizer: a.Authorizer, Rules: a.Rules, Wrote: a.Wrote}),
		reviews.AuthenticationGroup(a.Reviewer, a.Audiences),
		certificates.Group(certificates.Config{Authorizer: a.Authorizer}),
		reviews.AuthorizationGroup(a.Authorizer, a.Rules),
	}
}

func init() {
	for _, group := range groups(Access{}) {
		utilruntime.Must(group.Register(Scheme))
	}
	// Every API server needs these kinds.
	Scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
		&metav1.Status{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
}

// StorageCodec returns the storage codec of a built-in resource: protobuf in the served version.
func StorageCodec(resource schema.GroupResource) (runtime.Codec, error) {
	versions := Scheme.PrioritizedVersionsForGroup(resource.Group)
	if len(versions) == 0 {
		return nil, fmt.Errorf("no storage codec for %s: its group is not built in", resource)
	}
	codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: Codecs,
		StorageVersion:    versions[0],
		MemoryVersion:     schema.GroupVersion{Group: resource.Group, Version: runtime.APIVersionInternal},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the storage codec for %s: %w", resource, err)
	}
	if resource == corev1.Resource("configmaps") {
		codec = core.ShareCA(codec)
	}
	return codec, nil
}

// WireScheme returns a scheme with the types of Scheme and of other schemes that a server serves, for the namer of
// OpenAPI definitions. It lacks the internal version, which has the same Go types as the wire version.
func WireScheme(more ...*runtime.Scheme) *runtime.Scheme {
	wire := runtime.NewScheme()
	for _, scheme := range append([]*runtime.Scheme{Scheme}, more...) {
		for gvk, goType := range scheme.AllKnownTypes() {
			if gvk.Version == runtime.APIVersionInternal {
				continue
			}
			if object, ok := reflect.TypeAssert[runtime.Object](reflect.New(goType)); ok {
				wire.AddKnownTypeWithName(gvk, object)
			}
		}
	}
	return wire
}

// Access configures the resources that deal with the identity and the permissions of users.
type Access struct {
	// Reviewer authenticates tokens for TokenReviews. If it is nil, no token is valid.
	Reviewer authenticator.Token
	// Audiences are the audiences of this API, for TokenReviews without audiences.
	Audiences authenticator.Audiences
	// Tokens configures the tokens of service accounts.
	Tokens core.Tokens
	// Authorizer also evaluates access reviews.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists the rules of users and roles. Without it, only members of system:masters may write roles and bindings.
	Rules Rules
	// Wrote is called for every write of a role or binding before the response is sent. It is optional.
	Wrote func(cluster logicalcluster.Name, resource, resourceVersion string)
}

// Rules lists the rules that apply in the logical cluster of a context.
type Rules interface {
	authorizer.RuleResolver
	rbac.Rules
}

// Install serves the built-in resources from the server, which must have an OpenAPI configuration with a namer of
// WireScheme, and destroys the storages when it shuts down. options must use StorageCodec.
func Install(server *genericapiserver.GenericAPIServer, options generic.RESTOptionsGetter, access Access) (err error) {
	groups := groups(access)
	builder := &resource.Builder{Scheme: Scheme, RESTOptions: options}
	defer func() {
		if err != nil {
			builder.Destroy()
		}
	}()
	storages, err := builder.Build(groups)
	if err != nil {
		return fmt.Errorf("building the built-in resources: %w", err)
	}
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
