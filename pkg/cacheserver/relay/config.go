// Package relay replicates objects for the whole installation from other cache servers, below the names of their shards.
// It chooses for each shard the cache server to relay from, if any. Package replication does the rest.
//
//	shard ─► cache server of its region ─► relay ─► cache server of another region
//	              via: nothing                          via: [the first one]
package relay

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// ScopeInstallation selects the objects that are replicated to all regions.
const ScopeInstallation = "installation"

// Relay is another cache server and the objects that are relayed from it.
type Relay struct {
	From   From   `json:"from"`
	Select Select `json:"select"`
}

// From identifies a cache server.
type From struct {
	// Name is the --cache-name of that server.
	Name string `json:"name"`
	// Kubeconfig is the path of its kubeconfig.
	Kubeconfig string `json:"kubeconfig"`
}

func (f From) client() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Kubeconfig, err)
	}
	return config, nil
}

// Select selects the relayed objects.
type Select struct {
	// Scope is ScopeInstallation, which is the default.
	Scope string `json:"scope,omitempty"`
}

// Config is the content of a file with relays in the order of preference.
type Config struct {
	Relays []Relay `json:"relays"`
}

// Load reads a file. Paths of kubeconfigs are relative to its directory. The error contains all problems. self is the
// name of the relaying cache server.
func Load(file, self string) (Config, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return Config{}, err
	}
	var c Config
	if err := yaml.UnmarshalStrict(content, &c); err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	for i := range c.Relays {
		if path := &c.Relays[i].From.Kubeconfig; *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	if err := c.validate(self); err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

func (c Config) validate(self string) error {
	if len(c.Relays) == 0 {
		return errors.New("relays: no cache server is specified")
	}
	var errs []error
	names := map[string]int{}
	for i, relay := range c.Relays {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("relays[%d] (%q): %w", i, relay.From.Name, fmt.Errorf(format, args...)))
		}
		first, taken := names[relay.From.Name]
		switch {
		case taken:
			wrong("from.name: same as relays[%d]: names must be unique", first)
		case !request.ValidName(relay.From.Name):
			wrong("from.name: use up to %d lower-case letters, digits and hyphens", request.MaxNameLength)
		case relay.From.Name == self:
			wrong("from.name: must not be the name of this cache server, which cannot relay from itself: change its name with --%s", NameFlag)
		}
		names[relay.From.Name] = i
		if relay.From.Kubeconfig == "" {
			wrong("from.kubeconfig: must be specified")
		} else if _, err := relay.From.client(); err != nil {
			wrong("from.kubeconfig: %w", err)
		}
		if scope := relay.Select.Scope; scope != "" && scope != ScopeInstallation {
			wrong("select.scope: unsupported value %q: use %q or omit it; regional objects are not relayed", scope, ScopeInstallation)
		}
	}
	return errors.Join(errs...)
}

// NameFlag is the flag of the cache server's own name.
const NameFlag = "cache-name"

// Timing contains the intervals of relays. Zero fields have the defaults.
type Timing struct {
	// Look is the interval of the assignment of shards to sources (default 5s), in addition to events.
	Look time.Duration
	// Unreachable is the time for which a source must be unreachable before a shard is relayed from another one (default
	// 30s).
	Unreachable time.Duration
	// Check is the interval of checks of the identity of a source (default 10s), and Retry the one after a failed check
	// (default 1s).
	Check, Retry time.Duration
	// Checkpoint, Digest and Alert are the intervals of the replication (see push.Config).
	Checkpoint, Digest, Alert time.Duration
}

func (t Timing) withDefaults() Timing {
	t.Look, t.Unreachable = cmp.Or(t.Look, 5*time.Second), cmp.Or(t.Unreachable, 30*time.Second)
	t.Check, t.Retry = cmp.Or(t.Check, 10*time.Second), cmp.Or(t.Retry, time.Second)
	return t
}

// Self is the relaying cache server.
type Self struct {
	// DataID is the ID of its data.
	Name, DataID string
	// Replicas is the client that writes the relayed replicas.
	Replicas *client.Factory
	// Written are the resources that shards write to cache servers directly, except checkpoints.
	Written []schema.GroupVersionResource
	// Timing contains the intervals.
	Timing Timing
	// Metrics registers metrics. Nil registers none.
	Metrics prometheus.Registerer
}
