package registry

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	"github.com/shardplane/shardplane/pkg/registry/admissionregistration"
	"github.com/shardplane/shardplane/pkg/registry/authentication"
	"github.com/shardplane/shardplane/pkg/registry/authorization"
	"github.com/shardplane/shardplane/pkg/registry/certificates"
	"github.com/shardplane/shardplane/pkg/registry/coordination"
	"github.com/shardplane/shardplane/pkg/registry/core"
	"github.com/shardplane/shardplane/pkg/registry/events"
	"github.com/shardplane/shardplane/pkg/registry/rbac"
	"github.com/shardplane/shardplane/pkg/registry/resource"
)

var (
	// Scheme contains the types of all built-in resources.
	Scheme = runtime.NewScheme()
	// Codecs encodes and decodes their objects.
	Codecs = serializer.NewCodecFactory(Scheme)
	// ParameterCodec decodes query parameters.
	ParameterCodec = runtime.NewParameterCodec(Scheme)
)

// groups returns the API groups in the order in which they are built. The core group must be first, because others serve
// its resources.
func groups(a Access) []resource.Group {
	return []resource.Group{
		core.Group(a.Identity.Tokens, events.Core()),
		events.Group(),
		coordination.Group(),
		admissionregistration.Group(),
		rbac.Group(rbac.Config{Authorizer: a.Authorizer, Rules: a.Rules, Wrote: a.Wrote}),
		authentication.Group(authentication.Config{Tokens: a.Identity.Reviewer, Audiences: a.Identity.Audiences}),
		certificates.Group(certificates.Config{Authorizer: a.Authorizer}),
		authorization.Group(authorization.Config{Authorizer: a.Authorizer, Rules: a.Rules}),
	}
}

func init() {
	utilruntime.Must(addToScheme(Scheme))
}

// addToScheme registers the built-in groups and the kinds that every API server needs.
func addToScheme(scheme *runtime.Scheme) error {
	for _, group := range groups(Access{}) {
		if err := group.Register(scheme); err != nil {
			return err
		}
	}
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
		&metav1.Status{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return nil
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
