package serving

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Filter is one step of a chain.
type Filter struct {
	// Name says what it is, and Does what it does, in the documentation.
	Name, Does string
	// Wrap returns the filter around next; nil if options have switched it off.
	Wrap func(next http.Handler) http.Handler
}

// NewFilter returns a filter that is on.
func NewFilter(name, does string, wrap func(next http.Handler) http.Handler) Filter {
	return Filter{Name: name, Does: does, Wrap: wrap}
}

// Chain is all filters of a server, in the order in which requests pass them.
// Nothing else stands between the listener and the API.
type Chain []Filter

// Handler returns the filters around what serves.
func (c Chain) Handler(serves http.Handler) http.Handler {
	for _, filter := range slices.Backward(c) {
		if filter.Wrap != nil {
			serves = filter.Wrap(serves)
		}
	}
	return serves
}

// String returns the names of the filters and what they do, a line for each.
func (c Chain) String() string {
	var b strings.Builder
	for _, filter := range c {
		fmt.Fprintf(&b, "%-22s%s\n", filter.Name, filter.Does)
	}
	return b.String()
}

// SetChain has the server of c pass requests through the chain that build makes
// for the completed configuration.
func SetChain(c *genericapiserver.Config, build func(c *genericapiserver.Config) Chain) {
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(c).Handler(api)
	}
}

// when returns the filter if it is on, and nil otherwise.
func when(on bool, wrap func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	if !on {
		return nil
	}
	return wrap
}
