// Package relay has a cache server read from other cache servers what is meant for the whole
// installation, and keep it under the names of the shards that it comes from. It decides for each
// shard from which of them, if at all; package replication does the rest.
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

// ScopeInstallation selects what is meant for the whole installation.
const ScopeInstallation = "installation"

// Relay is another cache server, and what is read from it.
type Relay struct {
	From   From   `json:"from"`
	Select Select `json:"select"`
}

// From says which cache server it is.
type From struct {
	// Name is the one that it has itself.
	Name string `json:"name"`
	// Kubeconfig is the file by which it is reached.
	Kubeconfig string `json:"kubeconfig"`
}

func (f From) client() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Kubeconfig, err)
	}
	return config, nil
}

// Select says what is read.
type Select struct {
	// Scope is ScopeInstallation, which is the default.
	Scope string `json:"scope,omitempty"`
}

// Config is the content of a file that lists relays, the preferred one first.
type Config struct {
	Relays []Relay `json:"relays"`
}

// Load reads a file. Kubeconfigs are relative to its directory. The error names all that is wrong
// with it; self is the name of the cache server that relays.
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
		return errors.New("relays: it names no cache server")
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
			wrong("from.name: relays[%d] has it already: a name is that of one cache server", first)
		case !request.ValidName(relay.From.Name):
			wrong("from.name: use up to %d lower-case letters, digits and hyphens", request.MaxNameLength)
		case relay.From.Name == self:
			wrong("from.name: it is the name of this cache server, which cannot relay from itself: give it another one with --%s", NameFlag)
		}
		names[relay.From.Name] = i
		if relay.From.Kubeconfig == "" {
			wrong("from.kubeconfig: it is required")
		} else if _, err := relay.From.client(); err != nil {
			wrong("from.kubeconfig: %w", err)
		}
		if scope := relay.Select.Scope; scope != "" && scope != ScopeInstallation {
			wrong("select.scope: %q is none: use %q, or leave it out; what is regional stays where it is", scope, ScopeInstallation)
		}
	}
	return errors.Join(errs...)
}

// NameFlag is the flag for a cache server's own name.
const NameFlag = "cache-name"

// Timing contains the intervals of relays. Zero fields have the defaults.
type Timing struct {
	// Look is the interval at which is decided which shards are relayed from where (default 5s), unless
	// an event gives a reason to do it earlier.
	Look time.Duration
	// Away is for how long a source must be unreachable before a shard is relayed from another one (30s).
	Unreachable time.Duration
	// Check is the interval between two checks of the identity of a source (10s), and Retry that after
	// a check that failed (1s).
	Check, Retry time.Duration
	// Mark, Digest and Alert are the intervals of the replication (see push.Config).
	Checkpoint, Digest, Alert time.Duration
}

func (t Timing) withDefaults() Timing {
	t.Look, t.Unreachable = cmp.Or(t.Look, 5*time.Second), cmp.Or(t.Unreachable, 30*time.Second)
	t.Check, t.Retry = cmp.Or(t.Check, 10*time.Second), cmp.Or(t.Retry, time.Second)
	return t
}

// Self is the cache server that relays.
type Self struct {
	// Name is its name, and DataID the id of its data.
	Name, DataID string
	// Replicas is a client of it, which writes what is relayed.
	Replicas *client.Factory
	// Written are the resources that shards write to cache servers themselves, but for marks.
	Written []schema.GroupVersionResource
	// Timing are the intervals of its relays.
	Timing Timing
	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}
