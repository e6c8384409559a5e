package remoteparams

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type saved struct {
	Shard    string                  `json:"shard"`
	Cluster  string                  `json:"cluster"`
	Kind     schema.GroupVersionKind `json:"kind"`
	Path     string                  `json:"path"`
	Select   string                  `json:"selector,omitempty"`
	List     bool                    `json:"list,omitempty"`
	Used     time.Time               `json:"used"`
	Response *response               `json:"response"`
}

// Name is the name of the responses in a snapshot.
func (c *Cache) Name() string { return "parameters of policies" }

// Resource determines the encryption of the responses: like Secrets, because some parameters may be Secrets.
func (c *Cache) Resource() schema.GroupResource { return corev1.Resource("secrets") }

// Changes counts the changes of cached responses.
func (c *Cache) Changes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// Save returns the cached responses, the most recently used last, and drops those that have not been used for
// long.
func (c *Cache) Save() ([]json.RawMessage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []json.RawMessage{}
	for element := c.recent.Back(); element != nil; {
		e := entryOf(element)
		element = element.Prev()
		if time.Since(e.used) > unusedFor {
			c.remove(e)
			continue
		}
		if e.response == nil || e.response.refused != nil {
			continue
		}
		text, err := json.Marshal(saved{e.Shard, e.Cluster.String(), e.kind, e.path, e.selector, e.list, e.used, e.response})
		if err != nil {
			return nil, fmt.Errorf("encoding the parameters at %s: %w", e.path, err)
		}
		all = append(all, text)
	}
	return all, nil
}

// Restore loads the result of Save. Restored responses are used until they have been read again.
func (c *Cache) Restore(all []json.RawMessage) error {
	restored := make([]saved, len(all))
	for i, text := range all {
		if err := json.Unmarshal(text, &restored[i]); err != nil {
			return fmt.Errorf("decoding parameters of policies: %w", err)
		}
		if restored[i].Response == nil {
			return errNoValue
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range restored {
		e := c.use(key{
			Location: Location{s.Shard, logicalcluster.Name(s.Cluster)}, kind: s.Kind, path: s.Path, selector: s.Select, list: s.List,
		})
		e.used, e.response = s.Used, s.Response
		c.weigh(e)
	}
	return nil
}

var errNoValue = errors.New("saved parameters of policies have no value")
