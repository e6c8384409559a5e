package remoteparams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
)

const (
	// MaxObjects is the number of parameters that a selector may select.
	//
	//reference:limit request | admission policies: parameters that a selector selects | the policy fails
	MaxObjects = 200
	// maxRead limits an encoded response.
	//
	//reference:limit request | admission policies: size of parameters that are read from another shard | the policy fails
	maxRead = 2 << 20
)

var (
	// ErrTooMany means that a selector selects more than MaxObjects parameters.
	ErrTooMany  = fmt.Errorf("the selector of the binding selects more than %d parameters: select fewer, or name one", MaxObjects)
	errTooLarge = fmt.Errorf("the parameters are larger than %d MiB: reduce their size, or select fewer", maxRead>>20)
)

// Location is the shard and logical cluster of a policy and its parameters.
type Location struct {
	Shard   string              `json:"shard"`
	Cluster logicalcluster.Name `json:"cluster"`
}

// Read sends a GET request to a logical cluster and returns the JSON response, or an apierrors.APIStatus.
type Read func(ctx context.Context, at Location, path string, query url.Values) ([]byte, error)

// response is an immutable decoded response of a shard.
type response struct {
	// Resource and Namespaced are set in the response for a kind.
	Resource   string `json:"resource,omitempty"`
	Namespaced bool   `json:"namespaced,omitempty"`
	// Objects are set in the response for objects.
	Objects []*unstructured.Unstructured `json:"objects,omitempty"`
	// Missing is true if the object or kind does not exist.
	Missing bool `json:"missing,omitempty"`
	// refused is the error if the shard returned no objects.
	refused error
}

// weight returns the approximate memory of a response in bytes.
func (r *response) weight() int {
	if r == nil {
		return 0
	}
	weight := len(r.Resource)
	for _, obj := range r.Objects {
		weight += Weigh(obj)
	}
	return weight
}

// Weigh returns the approximate memory of a parameter in bytes.
func Weigh(obj *unstructured.Unstructured) int { return weigh(obj.Object) }

// weigh includes the overhead of Go for interfaces, slices and maps.
func weigh(value any) int {
	const header = 16
	weight := header
	switch value := value.(type) {
	case string:
		weight += header + len(value)
	case []any:
		weight += header
		for _, v := range value {
			weight += weigh(v)
		}
	case map[string]any:
		weight += 4 * header
		for k, v := range value {
			weight += 2*header + len(k) + weigh(v)
		}
	default:
		weight += header
	}
	return weight
}

func parseObject(content []byte) (*response, error) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("decoding a parameter: %w", err)
	}
	return &response{Objects: []*unstructured.Unstructured{obj}}, nil
}

func parseList(content []byte) (*response, error) {
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("decoding parameters: %w", err)
	}
	if len(list.Items) > MaxObjects || list.GetContinue() != "" {
		return nil, ErrTooMany
	}
	found := &response{Objects: make([]*unstructured.Unstructured, 0, len(list.Items))}
	for i := range list.Items {
		found.Objects = append(found.Objects, &list.Items[i])
	}
	return found, nil
}

// Watchable returns the resource of a kind that can be watched, or nil.
func Watchable(list *metav1.APIResourceList, kind string) *metav1.APIResource {
	for i := range list.APIResources {
		r := &list.APIResources[i]
		if r.Kind == kind && slices.Contains(r.Verbs, "watch") && slices.Contains(r.Verbs, "get") {
			return r
		}
	}
	return nil
}

// parseKind returns a function that finds a kind in the resources of a group version.
func parseKind(kind schema.GroupVersionKind) func([]byte) (*response, error) {
	return func(content []byte) (*response, error) {
		list := &metav1.APIResourceList{}
		if err := json.Unmarshal(content, list); err != nil {
			return nil, fmt.Errorf("decoding the resources of %s: %w", kind.GroupVersion(), err)
		}
		if r := Watchable(list, kind.Kind); r != nil {
			return &response{Resource: r.Name, Namespaced: r.Namespaced}, nil
		}
		return &response{Missing: true}, nil
	}
}

// FromOwn returns a Read that reads from this shard and ignores Location.Shard.
func FromOwn(clients *client.Factory) Read {
	return func(ctx context.Context, at Location, path string, query url.Values) ([]byte, error) {
		return get(ctx, clients.Cluster(at.Cluster.Path()), path, query)
	}
}

// FromPeers returns a Read for other shards. named returns a peer, or nil.
func FromPeers(named func(shard string) *peers.Peer) Read {
	return func(ctx context.Context, at Location, path string, query url.Values) (content []byte, err error) {
		peer := named(at.Shard)
		if peer == nil {
			return nil, fmt.Errorf("%w: unknown shard %q", peers.ErrUnreachable, at.Shard)
		}
		var unfit error
		// ctx limits the read. peer.Do has a longer timeout. If one request is slow, e.g. due to a conversion
		// webhook of a tenant, the shard is not necessarily unreachable.
		err = peer.Do(ctx, time.Minute, func(ctx context.Context) error {
			content, err = get(ctx, peer.Clients.Cluster(at.Cluster.Path()), path, query)
			if errors.Is(err, errTooLarge) {
				unfit = err
				return nil
			}
			return err
		})
		return content, errors.Join(err, unfit)
	}
}

// get reads at most maxRead bytes.
func get(ctx context.Context, scope client.Scope, path string, query url.Values) ([]byte, error) {
	config := scope.Config()
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, scope.HTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making a client for logical cluster %s: %w", scope, err)
	}
	get := c.Get().AbsPath(path)
	for name, values := range query {
		get = get.Param(name, values[0])
	}
	body, err := get.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	content, err := io.ReadAll(io.LimitReader(body, maxRead+1))
	if err != nil {
		return nil, fmt.Errorf("reading a parameter: %w", err)
	}
	if len(content) > maxRead {
		return nil, errTooLarge
	}
	return content, nil
}
