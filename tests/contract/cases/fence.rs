//! The fence is strictly increasing over all holds of a key, however the holds ended.

use std::time::Duration;

use dlock::lock::Fence;

use super::{Case, cases, everywhere};
use crate::lab::{LONG, Lab, key, nested, request, short};

pub fn all() -> Vec<Case> {
    cases![everywhere =>
        fence_rises_over_releases,
        fence_rises_over_a_crash,
        fence_rises_over_expiry,
        fence_rises_over_lost_data,
        fence_is_kept_while_it_is_held,
        fence_is_remembered_when_free,
        fence_is_below_2_to_the_53,
    ]
}

async fn fence_rises_over_releases(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let mut last = Fence(0);
    for _ in 0..10 {
        for client in [&mut a, &mut b] {
            let held = request(&job, LONG);
            let fence = client.take(&held).await.fence;
            assert!(fence > last, "{fence} after {last}");
            last = fence;
            client.free(&held).await;
        }
    }
}

async fn fence_rises_over_a_crash(lab: &Lab) {
    let job = key("job");
    let mut last = Fence(0);
    for _ in 0..2 {
        let mut client = lab.client().await;
        let fence = client.take(&request(&job, short())).await.fence;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        drop(client);
        lab.outlast(short()).await;
    }
    assert!(lab.client().await.take(&request(&job, LONG)).await.fence > last);
}

async fn fence_rises_over_expiry(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let first = a.take(&lab.expiring(&job, short())).await.fence;
    lab.outlast(short()).await;
    let second = b.take(&lab.expiring(&job, short())).await.fence;
    assert!(second > first, "{second} after {first}");
}

async fn fence_rises_over_lost_data(lab: &Lab) {
    let job = key("job");
    let mut last = Fence(0);
    for _ in 0..4 {
        let mut client = lab.client().await;
        for _ in 0..5 {
            let held = request(&job, LONG);
            let fence = client.take(&held).await.fence;
            assert!(fence > last, "{fence} after {last}");
            last = fence;
            client.free(&held).await;
        }
        drop(client);
        lab.lose_data().await;
        lab.pass(Duration::from_millis(5)).await;
    }
}

async fn fence_is_kept_while_it_is_held(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    assert_eq!(a.take(&held).await.fence, fence, "a repeated request");
    assert_eq!(a.renewed(&held, None).await, fence, "renewed");
    if lab.kind.crosses_processes() {
        assert_eq!(a.take(&nested(&held)).await.fence, fence, "entered again");
    }
    assert_eq!(
        a.inspect(&job).await.holders[0].fence,
        Some(fence),
        "inspected"
    );
    // A busy answer consumes no fence.
    lab.client().await.refused(&request(&job, LONG)).await;
    assert_eq!(a.inspect(&job).await.last_fence, Some(fence));
}

async fn fence_is_remembered_when_free(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    a.free(&held).await;
    let state = lab.client().await.inspect(&job).await;
    assert!(state.holders.is_empty());
    assert_eq!(state.last_fence, Some(fence));
}

async fn fence_is_below_2_to_the_53(lab: &Lab) {
    let mut a = lab.client().await;
    let fence = a.take(&request(&key("job"), LONG)).await.fence;
    assert!(fence.0 > 0 && fence.0 < 1 << 53, "{fence}");
}
