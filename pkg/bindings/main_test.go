package bindings

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// patient lists tests that end while schemas are read, which outlives requests: client-go retries after a second if the
// server is stopped.
type patient struct{ *testing.M }

func (p patient) Run() int {
	code := p.M.Run()
	for range 10 {
		if goleak.Find() == nil {
			break
		}
	}
	return code
}
