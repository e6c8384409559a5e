package bindings

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// patient are tests that end with the reads of schemas, which outlive requests: client-go repeats one after a
// second if the server goes away.
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
