package customresource

import (
	"fmt"
	"sync"
	"testing"
)

// BenchmarkDefine creates a definition beside 4,000 others of the shard, and
// waits until it is served.
func BenchmarkDefine(b *testing.B) {
	s := startServer(b, serverOptions{})
	var creators sync.WaitGroup
	for creator := range 8 {
		creators.Go(func() {
			for i := range 500 {
				s.CreateCRD(b, fmt.Sprintf("beside-%d-%d", creator, i), widgetCRD(nil))
			}
		})
	}
	creators.Wait()
	n := 0
	for b.Loop() {
		n++
		s.CreateCRD(b, fmt.Sprintf("new-%d", n), widgetCRD(nil))
	}
}
