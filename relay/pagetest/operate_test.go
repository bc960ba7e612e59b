package pagetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// The actions of an operator, in a real browser: with a mouse, and once with only the keyboard.

// phase waits until the rollout of EU is in a phase, and has some changes.
func (b *browser) phase(t *testing.T, phase string, frozen bool, changes int) {
	t.Helper()
	await(t, fmt.Sprintf("the rollout is %s, frozen: %v", phase, frozen), func() error {
		var all []operator.RolloutStatus
		if b.document("/rollouts", &all); len(all) != 1 || all[0].Phase != phase || all[0].Frozen != frozen || all[0].Total != changes {
			return fmt.Errorf("it is %+v", all)
		}
		return nil
	})
}

// A search leads to a client, and from there to a resource with the difference of its versions.
func TestInABrowserASearchLeadsToWhatIsWrong(t *testing.T) {
	needBrowser(t)
	w, _ := startBroken(t)
	c := openChromium(t, w.Operator)
	c.open("/ui")
	c.click("search")
	c.write("WEB-2")
	c.click("Search")
	c.awaitText("Found for “WEB-2”")
	c.click(brokenworld.Rejecting)
	c.awaitText(brokenworld.Words)
	c.click("cart")
	c.awaitText("Is named by")
	c.click("web-routes")
	c.awaitText("It names")
	c.awaitText("does not exist")

	c.click("Rollouts")
	c.click("versions of checkout")
	c.awaitText("From the accepted to the newest version")
	for class, text := range map[string]string{"del": "eu-first", "add": "eu-second"} {
		c.await("the difference has "+text, `document.querySelector("pre.diff .`+class+`") && [...document.querySelectorAll("pre.diff .`+class+`")].some((e) => e.textContent.includes("`+text+`"))`)
	}
	c.click("Overview")
	c.click(`authority "down.example.com": no server can be reached: ` + c.downReason())
	c.awaitText("Streams to control planes")
	c.awaitText("connection refused")
}

// downReason returns why the authority cannot be reached, as the overview shows it.
func (c *chromium) downReason() (why string) {
	c.t.Helper()
	c.awaitText("no server can be reached")
	if err := c.evaluate(`[...document.querySelectorAll(".problems a")].map((e) => e.textContent).find((t) => t.includes("no server can be reached")).split("reached: ")[1]`, &why); err != nil {
		c.t.Fatal(err)
	}
	return why
}

// The buttons continue, hold and end a rollout, each only after a confirmation.
func TestInABrowserButtonsOperateARollout(t *testing.T) {
	needBrowser(t)
	w, b := startBroken(t)
	c := openChromium(t, w.Operator)
	c.open("/rollout")
	c.awaitText("It is frozen")
	b.phase(t, "held", true, 1)

	c.click("Approve") // asks, and can be closed again
	c.awaitText("Approve now")
	c.click("Approve")
	c.await("the confirmation is closed", `!document.querySelector("details[open]")`)
	b.phase(t, "held", true, 1)

	c.click("Thaw")
	c.click("Thaw now")
	b.phase(t, "rolling", false, 1)
	c.awaitText("rolling")
	c.awaitText("Freeze")
	c.click("Freeze")
	c.click("Freeze now")
	b.phase(t, "rolling", true, 1)
	c.awaitText("It is frozen")

	// Opened elements and entered text stay while the page is updated.
	c.click("Reject")
	c.click("reject \"" + brokenworld.EU + "\" \"\" reason")
	c.write("not on a Friday")
	c.click("Reject now")
	b.phase(t, "stopped", true, 1)
	c.awaitText("not on a Friday")

	w.WriteThird(t)
	await(t, "the relay has what is newer", func() error { return b.newest("eu-third") })
	c.click("Approve")
	c.click("Approve now")
	b.phase(t, "idle", true, 0)
	c.awaitText("idle")
}

// newest checks that the newest version of EU's cluster has a text.
func (b *browser) newest(text string) error {
	var s operator.ResourceStatus
	b.document("/api/resource?authority="+brokenworld.EU+"&type=cluster&name=checkout", &s)
	if s.Newest == nil || !strings.Contains(s.Newest.YAML, text) {
		return fmt.Errorf("the newest version is %+v", s.Newest)
	}
	return nil
}

// Everything works with only the keyboard, and the focus is always visible.
func TestInABrowserTheKeyboardIsEnough(t *testing.T) {
	needBrowser(t)
	w, b := startBroken(t)
	c := openChromium(t, w.Operator)
	c.open("/ui")
	c.tabTo("Skip to the content")
	c.press("Enter")
	c.tabTo("search")
	c.write(brokenworld.Rejecting)
	c.press("Enter")
	c.awaitText("Found for")
	c.tabTo(brokenworld.Rejecting)
	c.press("Enter")
	c.awaitText(brokenworld.Words)
	c.tabTo("Rollouts")
	c.press("Enter")
	c.awaitText("It is frozen")
	c.tabTo("Thaw")
	c.press("Enter")
	c.tabTo("Thaw now")
	b.phase(t, "held", true, 1)
	c.press("Enter")
	b.phase(t, "rolling", false, 1)
	c.awaitText("rolling")
}
