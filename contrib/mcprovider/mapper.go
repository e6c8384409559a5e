package mcprovider

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/shardplane/shardplane/pkg/client/documents"
)

// mappings contains discovered kinds of logical clusters. If they serve the same resources, they share a mapping.
type mappings struct {
	mu sync.Mutex
	// of contains the mappings of groups and versions that have been discovered in a logical cluster.
	of map[logicalcluster.Name]map[schema.GroupVersion]*mapping
	// known contains all mappings by hash.
	known map[uint64]*mapping
}

// mapping contains the resources of a group and version.
type mapping struct {
	meta.RESTMapper

	hash uint64
	// uses is the number of logical clusters with this mapping.
	uses int
}

func newMappings() *mappings {
	return &mappings{of: map[logicalcluster.Name]map[schema.GroupVersion]*mapping{}, known: map[uint64]*mapping{}}
}

func (m *mappings) get(name logicalcluster.Name, gv schema.GroupVersion) meta.RESTMapper {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.of[name][gv]; known != nil {
		return known
	}
	return nil
}

func (m *mappings) forget(name logicalcluster.Name) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, old := range m.of[name] {
		m.release(old)
	}
	delete(m.of, name)
}

// release removes one use. The lock must be held.
func (m *mappings) release(old *mapping) {
	if old.uses--; old.uses == 0 {
		delete(m.known, old.hash)
	}
}

// add adds the resources of a group and version in a logical cluster.
func (m *mappings) add(name logicalcluster.Name, gv schema.GroupVersion, resources []metav1.APIResource) meta.RESTMapper {
	hash := fnv.New64a()
	fmt.Fprint(hash, gv)
	for _, r := range resources {
		fmt.Fprint(hash, "\n", r.Name, " ", r.SingularName, " ", r.Kind, " ", r.Namespaced)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.known[hash.Sum64()]
	if now == nil {
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		now = &mapping{hash: hash.Sum64(), RESTMapper: restmapper.NewDiscoveryRESTMapper([]*restmapper.APIGroupResources{{
			Group:              metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
			VersionedResources: map[string][]metav1.APIResource{gv.Version: resources},
		}})}
		m.known[now.hash] = now
	}
	if m.of[name] == nil {
		m.of[name] = map[schema.GroupVersion]*mapping{}
	}
	now.uses++
	if old := m.of[name][gv]; old != nil {
		m.release(old)
	}
	m.of[name][gv] = now
	return now
}

// mapperOf is the mapper of a logical cluster. It discovers resources of a group and version once, and everything else on each call. It
// works for logical clusters of other replicas as well, because it is needed until the last work ends.
type mapperOf struct {
	provider *Provider
	name     logicalcluster.Name
}

var _ meta.RESTMapper = mapperOf{}

// version calls serves with the mapper of a group and version.
func (m mapperOf) version(gv schema.GroupVersion, serves func(meta.RESTMapper) error) error {
	all := m.provider.mappings
	if known := all.get(m.name, gv); known != nil && serves(known) == nil {
		return nil
	}
	discovery, err := documents.Of(clusterOf(m).scope())
	if err != nil {
		return err
	}
	list, err := discovery.ServerResourcesForGroupVersion(gv.String())
	switch {
	case apierrors.IsNotFound(err):
		return serves(meta.MultiRESTMapper{})
	case err != nil:
		return fmt.Errorf("discovering resources in logical cluster %q for %s: %w", m.name, gv, err)
	}
	added := all.add(m.name, gv, list.APIResources)
	m.provider.forgetDeleted(m.name)
	return serves(added)
}

// whole returns a new mapper of all resources in the logical cluster.
func (m mapperOf) whole() (meta.RESTMapper, error) {
	return apiutil.NewDynamicRESTMapper(clusterOf(m).scope().Config(), m.provider.reach.HTTPClient())
}

// byWhole calls f with a new mapper of all resources.
func byWhole[T any](m mapperOf, f func(meta.RESTMapper) (T, error)) (T, error) {
	whole, err := m.whole()
	if err != nil {
		var none T
		return none, err
	}
	return f(whole)
}

// RESTMapping implements meta.RESTMapper.
func (m mapperOf) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	versions = slices.DeleteFunc(slices.Clone(versions), func(version string) bool { return version == "" })
	if len(versions) == 0 {
		return byWhole(m, func(whole meta.RESTMapper) (*meta.RESTMapping, error) { return whole.RESTMapping(kind) })
	}
	var mapping *meta.RESTMapping
	var err error
	for _, version := range versions {
		if err = m.version(kind.WithVersion(version).GroupVersion(), func(of meta.RESTMapper) error {
			var err error
			mapping, err = of.RESTMapping(kind, version)
			return err
		}); err == nil {
			return mapping, nil
		}
	}
	return nil, err
}

// RESTMappings implements meta.RESTMapper.
func (m mapperOf) RESTMappings(kind schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return byWhole(m, func(whole meta.RESTMapper) ([]*meta.RESTMapping, error) { return whole.RESTMappings(kind, versions...) })
}

// KindFor implements meta.RESTMapper.
func (m mapperOf) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return byWhole(m, func(whole meta.RESTMapper) (schema.GroupVersionKind, error) { return whole.KindFor(resource) })
}

// KindsFor implements meta.RESTMapper.
func (m mapperOf) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return byWhole(m, func(whole meta.RESTMapper) ([]schema.GroupVersionKind, error) { return whole.KindsFor(resource) })
}

// ResourceFor implements meta.RESTMapper.
func (m mapperOf) ResourceFor(resource schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return byWhole(m, func(whole meta.RESTMapper) (schema.GroupVersionResource, error) { return whole.ResourceFor(resource) })
}

// ResourcesFor implements meta.RESTMapper.
func (m mapperOf) ResourcesFor(resource schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return byWhole(m, func(whole meta.RESTMapper) ([]schema.GroupVersionResource, error) {
		return whole.ResourcesFor(resource)
	})
}

// ResourceSingularizer implements meta.RESTMapper.
func (m mapperOf) ResourceSingularizer(resource string) (string, error) {
	whole, err := m.whole()
	if err != nil {
		return resource, err
	}
	return whole.ResourceSingularizer(resource)
}
