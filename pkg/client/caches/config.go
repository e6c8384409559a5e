// Package caches says which caches a shard pushes its replicas to, and which it reads those of
// others from.
package caches

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/request"
)

// DefaultName is the name of a cache that is the only one.
const DefaultName = "cache"

// Cache is a cache server, or several replicas of one behind one address.
type Cache struct {
	// Name is how logs, metrics and errors name it.
	Name string `json:"name"`
	// Kubeconfig is the file by which it is reached.
	Kubeconfig string `json:"kubeconfig"`
	// Push says that the shard's own replicas go there.
	Push bool `json:"push,omitempty"`
	// Read says that those of others are read there, and in which order: the lowest number
	// first. They are not where it is 0.
	Read int `json:"read,omitempty"`
}

// Config is the content of a file that lists caches.
type Config struct {
	Caches []Cache `json:"caches"`
}

// Single returns the list of one cache. Without a kubeconfig there is none.
func Single(kubeconfig string) Config {
	if kubeconfig == "" {
		return Config{}
	}
	return Config{Caches: []Cache{{Name: DefaultName, Kubeconfig: kubeconfig, Push: true, Read: 1}}}
}

// Load reads a file. Kubeconfigs are relative to its directory. The error names all that is wrong
// with it.
func Load(file string) (Config, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return Config{}, err
	}
	var c Config
	if err := yaml.UnmarshalStrict(content, &c); err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	for i := range c.Caches {
		if path := &c.Caches[i].Kubeconfig; *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	if err := c.validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// validate returns all that is wrong.
func (c Config) validate() error {
	var errs []error
	if len(c.Caches) == 0 {
		return errors.New("caches: it names no cache")
	}
	names, reads, servers := map[string]int{}, map[int]string{}, map[string]string{}
	for i, cache := range c.Caches {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("caches[%d] (%q): %w", i, cache.Name, fmt.Errorf(format, args...)))
		}
		if first, taken := names[cache.Name]; taken {
			wrong("name: caches[%d] has it already", first)
		} else if !request.ValidName(cache.Name) {
			wrong("name: use up to %d lower-case letters, digits and hyphens", request.MaxNameLength)
		}
		names[cache.Name] = i
		if cache.Kubeconfig == "" {
			wrong("kubeconfig: it is required")
		} else if client, err := cache.Client(); err != nil {
			wrong("kubeconfig: %w", err)
		} else if server := strings.TrimRight(client.Host, "/"); servers[server] != "" {
			wrong("kubeconfig: it leads to %s, as that of %q does: a cache server has one entry, with push and read", server, servers[server])
		} else {
			servers[server] = cache.Name
		}
		if other, taken := reads[cache.Read]; taken && cache.Read != 0 {
			wrong("read: %q is number %d already: the order would be any", other, cache.Read)
		}
		reads[cache.Read] = cache.Name
		if cache.Read < 0 {
			wrong("read: %d is negative: use 1 for the cache that is read first, and 0, or nothing, for one that is not read", cache.Read)
		}
		if !cache.Push && cache.Read == 0 {
			wrong("it is neither pushed to nor read: set push or read, or leave it out")
		}
	}
	if len(c.Readers()) == 0 {
		errs = append(errs, errors.New("no cache is read: set read: 1 where replicas of other shards are read first"))
	}
	if len(c.Pushed()) == 0 {
		errs = append(errs, errors.New("no cache is pushed to: set push: true where other shards find the replicas of this one"))
	}
	return errors.Join(errs...)
}

// Readers returns those that are read, the preferred one first.
func (c Config) Readers() []Cache {
	return slices.SortedFunc(slices.Values(c.selected(func(cache Cache) bool { return cache.Read > 0 })), func(a, b Cache) int { return cmp.Compare(a.Read, b.Read) })
}

// Pushed returns those to which the shard pushes, in the order of the file.
func (c Config) Pushed() []Cache { return c.selected(func(cache Cache) bool { return cache.Push }) }

func (c Config) selected(is func(Cache) bool) []Cache {
	return slices.DeleteFunc(slices.Clone(c.Caches), func(cache Cache) bool { return !is(cache) })
}

// Client returns the configuration of clients of the cache.
func (c Cache) Client() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Kubeconfig, err)
	}
	return config, nil
}
